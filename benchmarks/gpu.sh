#!/usr/bin/env bash
# Every GPU check and measurement in one call of some ten minutes, with torch and Triton alone; the
# last part, which trains as `attnres ablate` does, needs attnres installed and fails without.
#
#   benchmarks/gpu.sh OUT_FOLDER
#
# Writes a log and JSON per part to the folder and ends with a short table. Parts that fail or run
# out of their time are named in it; the others still run. PYTHON names the interpreter.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: benchmarks/gpu.sh OUT_FOLDER}
python=${PYTHON:-python3}
mkdir -p "$out"
export PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$out/inductor}"
declare -A ended

part() { # name, seconds, command...
  local name=$1 seconds=$2
  shift 2
  echo "== $name"
  timeout "$seconds" "$@" 2>&1 | tee "$out/$name.log"
  ended[$name]=${PIPESTATUS[0]}
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | tee "$out/device.txt"
part check 130 "$python" benchmarks/check.py cuda
part mixing 60 "$python" benchmarks/mixing.py --device cuda --json "$out/mixing.json"
part step 240 "$python" benchmarks/step.py gpu --engines triton --json "$out/step.json" --rounds 15
part memory 60 "$python" benchmarks/memory.py --device cuda --depths 16 --engines triton --json "$out/memory.json"
part rivals 90 "$python" benchmarks/rivals.py --json "$out/rivals.json" --rounds 15
part trainer 150 "$python" benchmarks/trainer.py gpu --json "$out/trainer.json" --rounds 20 # attnres installed
rm -rf "$out/inductor"

echo
echo "== summary"
for name in check mixing step memory rivals trainer; do
  case ${ended[$name]} in
    0) state=ok ;;
    124) state="out of time" ;;
    *) state="failed (${ended[$name]})" ;;
  esac
  printf '%-8s %s\n' "$name" "$state"
done
grep -h WRONG "$out/check.log" || true
grep -hE "target|ours over" "$out"/{step,mixing,memory,rivals,trainer}.log 2>/dev/null || true
