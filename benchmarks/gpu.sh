#!/usr/bin/env bash
# Every GPU check and measurement in one call of some 30 minutes, with torch and Triton alone; parts
# from `trainer` on train as `attnres ablate` does, need attnres installed and fail without.
#
#   benchmarks/gpu.sh OUT_FOLDER
#   PARTS="check step" benchmarks/gpu.sh OUT_FOLDER      # in pieces, where a GPU is lent by the minute
#
# Writes a log and JSON per part to the folder and ends with a short table. Parts that fail or run
# out of their time are named in it; the others still run. PYTHON names the interpreter. Where there
# is no GPU, DEVICE=cpu SMALL="--recipe quick --set train.tokens=40k" tries what can do without one.
set -uo pipefail
: "${1:?usage: benchmarks/gpu.sh OUT_FOLDER}"
out=$(realpath -m "$1") # as seen from where the call is made
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
mkdir -p "$out"
export PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$out/inductor}"
device=${DEVICE:-cuda}
read -ra small <<<"${SMALL:-}"
declare -A ended
names=()

part() { # name, seconds, command...
  local name=$1 seconds=$2 started=$SECONDS
  shift 2
  [[ -z ${PARTS:-} || " $PARTS " == *" $name "* ]] || return 0
  echo "== $name"
  timeout "$seconds" "$@" 2>&1 | tee "$out/$name.log"
  ended[$name]=${PIPESTATUS[0]}
  names+=("$name")
  echo "$((SECONDS - started)) s" >"$out/$name.seconds"
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | tee "$out/device.txt"
if [ "$device" = cuda ]; then
  part check 300 "$python" benchmarks/check.py cuda
  part mixing 60 "$python" benchmarks/mixing.py --device cuda --json "$out/mixing.json"
  part tiles 150 "$python" benchmarks/tiles.py --json "$out/tiles.json"
  part launches 240 "$python" benchmarks/launches.py --json "$out/launches.json"
  part step 240 "$python" benchmarks/step.py gpu --engines triton --json "$out/step.json" --rounds 15
  part memory 60 "$python" benchmarks/memory.py --device cuda --depths 16 --engines triton --json "$out/memory.json"
  part rivals 90 "$python" benchmarks/rivals.py --json "$out/rivals.json" --rounds 15
  part trainer 150 "$python" benchmarks/trainer.py gpu --json "$out/trainer.json" --rounds 20 # attnres installed
fi
part predicted 150 "$python" benchmarks/predicted.py --device "$device" --json "$out/predicted.json" ${SMALL:+--quick}
part decode 150 "$python" -m attnres_cli bench decode --recipe small --device "$device" --format json "${small[@]}"
[ ! -f "$out/decode.log" ] || # what it says first went to the log too
  sed -n '/^{/,$p' "$out/decode.log" >"$out/decode.json"
rm -rf "$out"/workers?.{db*,runs}
for n in 1 2 4; do # eight runs of quick on one GPU: what the plan's own number of workers rests on
  part "workers$n" 240 "$python" -m attnres_cli ablate standard attnres --seeds 4 --workers "$n" \
    --device "$device" --study "$out/workers$n.db" "${small[@]}"
done
rm -rf "$out/inductor"

echo
echo "== summary"
for name in "${names[@]}"; do
  case ${ended[$name]} in
    0) state=ok ;;
    124) state="out of time" ;;
    *) state="failed (${ended[$name]})" ;;
  esac
  printf '%-10s %-14s %s\n' "$name" "$state" "$(<"$out/$name.seconds")"
done
grep -h WRONG "$out/check.log" 2>/dev/null || true
grep -hE "target|ours over" "$out"/{step,mixing,memory,rivals,trainer}.log 2>/dev/null || true
