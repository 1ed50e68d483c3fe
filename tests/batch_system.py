"""Stand-ins for SLURM's programs on one machine: jobs are arrays, and start at once."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_SBATCH = r"""#!/bin/bash
# sbatch FILE: every task of the array in a session of its own, again as long as it is requeued
file=$(realpath "$1"); state=$(dirname "$0")/jobs; id=$$; mkdir -p "$state"
last=$(sed -n 's/^#SBATCH --array=0-\([0-9]*\).*/\1/p' "$file")
task() {
    export SLURM_JOB_ID=$((id + 1 + $1)) SLURM_ARRAY_JOB_ID=$id SLURM_ARRAY_TASK_ID=$1
    export SLURM_RESTART_COUNT=0
    while
        setsid bash "$file" >>"$PWD/attnres-${id}_$1.log" 2>&1 & job=$!
        echo $job >"$state/${id}_$1"
        wait $job
        rm -f "$state/${id}_$1.step"
        rm "$state/${id}_$1.again" 2>/dev/null
    do SLURM_RESTART_COUNT=$((SLURM_RESTART_COUNT + 1)); done
    rm "$state/${id}_$1"
}
export file state id; export -f task
for number in $(seq 0 "${last:-0}"); do
    echo $$ >"$state/${id}_$number"
    setsid bash -c "task $number" </dev/null >/dev/null 2>&1 &
done
echo "Submitted batch job $id"
"""
_SRUN = r"""#!/bin/bash
# srun --unbuffered --output FILE --error FILE COMMAND
echo $$ >"$(dirname "$0")/jobs/${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID.step"
name() { sed "s/%A_%a/${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID/; s/%j/$SLURM_JOB_ID/; s/%t/0/"; }
out=$(name <<<"$3"); err=$(name <<<"$5"); shift 5
exec "$@" >>"$out" 2>>"$err"
"""
_SCONTROL = '#!/bin/bash\ntouch "$(dirname "$0")/jobs/$2.again"\n'
_SACCT = "#!/bin/bash\necho 'JobID|State|NodeList'\n"
_SCANCEL = '#!{python}\nimport sys\nsys.path.insert(0, "{tests}")\nimport batch_system\n'
_SCANCEL += 'batch_system.tell(__import__("pathlib").Path("{bin}"), sys.argv[1], 15)\n'


def install(folder: Path) -> Path:
    """Return the folder with the programs, to be the first of PATH."""
    programs = folder / "bin"
    programs.mkdir()
    scancel = _SCANCEL.format(python=sys.executable, tests=Path(__file__).parent, bin=programs)
    for name, text in {
        "sbatch": _SBATCH, "srun": _SRUN, "scontrol": _SCONTROL, "sacct": _SACCT,
        "scancel": scancel,
    }.items():  # fmt: skip
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return programs


def jobs(programs: Path) -> list[str]:
    """Running or starting tasks of arrays, such as `1234_0`."""
    return sorted(path.name for path in (programs / "jobs").glob("*") if not path.suffix)


def tell(programs: Path, job: str, number: int) -> None:
    """Send a signal to a job as SLURM does by default: to what srun has started, or without that to
    the shell of its batch script. Neither's own children get it.
    """
    for name in (f"{job}.step", job):
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((programs / "jobs" / name).read_text()), signal.Signals(number))
            return
