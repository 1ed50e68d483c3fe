// Sort a table by a column: a button in every head, numbers as numbers, the baseline as any row.
for (const table of document.querySelectorAll('table')) {
  const body = table.tBodies[0];
  if (body.rows.length < 3) continue;
  [...table.tHead.rows[0].cells].forEach((head, at) => {
    if (!head.textContent.trim() || head.classList.contains('bar')) return;
    const button = document.createElement('button');
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener('click', () => {
      const up = head.getAttribute('aria-sort') !== 'ascending';
      for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
      const value = row => row.cells[at].textContent.trim().replace(/,/g, '');
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)], [n, m] = [parseFloat(x), parseFloat(y)];
        if (isNaN(n) !== isNaN(m)) return isNaN(n) ? 1 : -1;
        return (isNaN(n) ? x.localeCompare(y) : n - m) * (up ? 1 : -1);
      });
      body.append(...rows);
    });
  });
}
