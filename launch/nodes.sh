#!/usr/bin/env bash
# Several Ray nodes on this machine and one fedsim command on them. Needs Linux and bash, and fedsim
# on the PATH. Everything lives in one private folder, and what was started here ends with it.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: launch/nodes.sh N [options] -- COMMAND [ARG ...]

Starts N Ray nodes on this machine, runs 'fedsim COMMAND --address ... ARG ...' on them, and ends
them, also after Ctrl-C or a failure. The exit status is fedsim's. The first node is the head.

  --cpus C      CPUs dealt out to the nodes, all nodes together (default: this machine's)
  --gpus IDS    GPUs dealt out to the nodes, such as 0,1,2,3 (default: none)
  --store MIB   object store of each node (default: 30 % of the free memory, divided by N)
  --pids FILE   write a line 'NUMBER PID' for each node; all its processes are in the session PID,
                so 'kill -KILL $(ps -o pid= --sid PID)' is the sudden death of that node

Example: launch/nodes.sh 2 -- run --rounds 8 --out runs/two-nodes
TEXT
}

fail() {
  echo "error: $1" >&2
  exit "${2:-2}"
}

whole() { [[ $2 =~ ^[1-9][0-9]{0,8}$ ]] || fail "$1 $2: must be a whole number of at least 1"; }

count='' cpus=$(env -u OMP_NUM_THREADS nproc) gpus='' store='' pids=/dev/null
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    -h | --help) usage && exit ;;
    --cpus | --gpus | --store | --pids)
      [ $# -gt 1 ] || fail "$1: a value is missing"
      printf -v "${1#--}" %s "$2"
      shift ;;
    -*) fail "unknown option $1; launch/nodes.sh --help lists those there are" ;;
    *) count=$1 ;;
  esac
  shift
done
[ -n "$count" ] || fail "the number of nodes is missing; see launch/nodes.sh --help"
[ $# -gt 1 ] || fail "a command is missing, such as: launch/nodes.sh $count -- run"
shift
whole N "$count"
whole --cpus "$cpus"
[ "$cpus" -ge "$count" ] || fail "--cpus $cpus: each of the $count nodes needs one"
[[ $gpus =~ ^([0-9]+(,[0-9]+)*)?$ ]] || fail "--gpus $gpus: must be numbers such as 0,1"
free=$(awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo)
: "${store:=$((free * 3 / 10 / count))}"
whole --store "$store"
true 2>/dev/null >"$pids" || fail "--pids $pids: cannot be written"
for program in ray fedsim python; do
  command -v $program >/dev/null || fail "$program is not on the PATH; activate the environment"
done

base=''     # the private folder
sessions=() # of all that runs in the background
driver=''   # the PID of fedsim

pids_of() { # pids_of leaders|members: of our sessions, without those that wait to be reaped
  ps -e -o pid= -o sess= -o stat= | awk -v kind="$1" -v ours=" ${sessions[*]} " \
    '$3 !~ /^Z/ && index(ours, " " $2 " ") && (kind == "members" || $1 == $2) {print $1}'
}

finish() {
  trap '' INT TERM HUP
  # the jobs: a fedsim that was started, but is no driver yet
  printf '%s\n' "$(pids_of leaders)" "$(jobs -rp)" | xargs -r kill -TERM 2>/dev/null || true
  for _ in {1..50}; do
    [ -n "$(pids_of members)" ] || break
    sleep 0.1
  done
  printf '%s\n' "$(pids_of members)" "$(jobs -rp)" | xargs -r kill -KILL 2>/dev/null || true
  wait 2>/dev/null || true
  rm -rf "$base"
}
trap finish EXIT

pass_on() { # pass_on SIGNAL STATUS: fedsim ends in its own way; as long as there is none, we end
  [ -n "$driver" ] || exit "$2"
  kill -s "$1" "$driver" 2>/dev/null || true
}
trap 'pass_on INT 130' INT
trap 'pass_on TERM 143' TERM
trap 'pass_on TERM 129' HUP
base=$(mktemp -d "${RAY_TMPDIR:-/tmp}/fs.XXXXXX") # short: the paths of Ray's sockets end at 107 bytes

background() { # background LOG COMMAND...: in a session, which Ctrl-C does not reach; ends with us
  setsid setpriv --pdeathsig TERM "${@:2}" </dev/null >"$1" 2>&1 &
  sessions+=($!)
}

# The secret is this cluster's own: Ray asks every process for it, and ~/.ray stays as it is.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$base/token RAY_TMPDIR=$base
unset RAY_AUTH_TOKEN RAY_ADDRESS
od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$base/token"
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0 # otherwise a node takes 30 s to end

start() { # start NUMBER OPTION...: a node with its share of CPUs, GPUs and memory
  local number=$1 share ids own=() i
  share=$((cpus / count + (number <= cpus % count)))
  IFS=, read -ra ids <<<"$gpus"
  for ((i = number - 1; i < ${#ids[@]}; i += count)); do own+=("${ids[i]}"); done
  export CUDA_VISIBLE_DEVICES
  CUDA_VISIBLE_DEVICES=$(IFS=, && echo "${own[*]}")
  background "$base/$number.log" ray start "${@:2}" --block --disable-usage-stats \
    --num-cpus "$share" --num-gpus ${#own[@]} --temp-dir "$base/$number" \
    --object-store-memory $((store << 20)) --memory $(((free * 6 / 10 / count) << 20)) \
    --dashboard-agent-listen-port 0
  disown # else bash tells when it is killed
  echo "$number ${sessions[-1]}" >>"$pids"
}

until_there() { # until_there NUMBER COMMAND...: waits for the command to succeed
  until "${@:2}"; do
    if ! kill -0 "${sessions[-1]}" 2>/dev/null; then
      tail -n 20 "$base/$1.log" >&2
      fail "node $1 did not start; above are the last lines that it wrote" 1
    fi
    sleep 0.1
  done
}

visible=${CUDA_VISIBLE_DEVICES-all}
start 1 --head --port 0 --include-dashboard false
until_there 1 test -s "$base/1/ray_current_cluster"
address=$(<"$base/1/ray_current_cluster")
for ((number = 2; number <= count; number++)); do start "$number" --address "$address"; done
if [ "$visible" = all ]; then unset CUDA_VISIBLE_DEVICES; else CUDA_VISIBLE_DEVICES=$visible; fi

background "$base/wait.log" python "$(dirname "$0")/wait_for_nodes.py" "$count" \
  --address "$address" --timeout 120
if ! wait "${sessions[-1]}"; then
  tail -n 20 "$base"/*.log >&2
  fail "not all nodes came up; above are the last lines that they wrote" 1
fi
echo "$count Ray nodes at $address, $cpus CPUs in all, object store of $store MiB each" >&2

set -m # gives fedsim a process group of its own: signals reach it through pass_on alone, so once
fedsim "$1" --address "$address" "${@:2}" &
driver=$!
wait "$driver" || true # ends early when a signal comes
while kill -0 "$driver" 2>/dev/null; do wait "$driver" || true; done
wait "$driver"
