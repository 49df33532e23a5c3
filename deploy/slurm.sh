#!/usr/bin/env bash
#SBATCH --job-name lookfurther
#SBATCH --ntasks-per-node 1
#SBATCH --exclusive
#SBATCH --time 24:00:00
#SBATCH --signal B:TERM@120
# sbatch --nodes N deploy/slurm.sh PRESET --env ENV [settings]: learner on the first node, actors on all.
set -euo pipefail
port=6379
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p) # head would end the pipe early
cores=$((SLURM_CPUS_ON_NODE - 1)) # one core of the first node is the learner's

# A token of this job alone, in a file that only this user can read.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$PWD/.ray-token-$SLURM_JOB_ID"
(umask 077 && python -c "import secrets; print(secrets.token_hex(32), end='')" > "$RAY_AUTH_TOKEN_PATH")
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT

# Steps share the cores of their node. Without --ntasks, srun takes the number of tasks of the job.
start_step() { srun --overlap --cpu-bind none "$@"; }
on_head() { start_step --nodes 1 --ntasks 1 --nodelist "$head_node" "$@"; }
on_head ray start --head --port "$port" --num-cpus "$cores" --block &
ray_head=$!
until on_head ray health-check --address "$head_node:$port"; do
  kill -0 "$ray_head" 2> /dev/null || { echo "Ray does not start on $head_node" >&2; exit 1; }
  sleep 2
done
workers=$((SLURM_JOB_NUM_NODES - 1))
if [ "$workers" -gt 0 ]; then
  start_step --nodes "$workers" --ntasks "$workers" --exclude "$head_node" \
    ray start --address "$head_node:$port" --block &
fi

# Slurm signals this script before the time is over, and not Ray: the learner saves while its actors still play.
trap 'kill -TERM $!' TERM # the last command in the background is the learner
srun --overlap --cpu-bind none --nodes 1 --ntasks 1 --nodelist "$head_node" \
  lookfurther train "$@" --cluster "$head_node:$port" &
learner=$!
status=0
wait "$learner" || status=$?
while kill -0 "$learner" 2> /dev/null; do # a signal ends the first wait
  status=0
  wait "$learner" || status=$?
done
exit "$status"
