#!/usr/bin/env bash
#SBATCH --job-name lookfurther
#SBATCH --ntasks-per-node 1
#SBATCH --exclusive
#SBATCH --time 24:00:00
#SBATCH --signal TERM@120
# sbatch --nodes N deploy/slurm.sh PRESET --env ENV [settings]: learner on the first node, actors on all.
set -euo pipefail
port=6379
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head --lines 1)
cores=$((SLURM_CPUS_ON_NODE - 1)) # one core of the first node is the learner's

# A token of this job alone, in a file that only this user can read.
umask 077
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$PWD/.ray-token-$SLURM_JOB_ID"
python -c "import secrets; print(secrets.token_hex(32), end='')" > "$RAY_AUTH_TOKEN_PATH"
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT

srun --nodes 1 --ntasks 1 --nodelist "$head_node" --overlap \
  ray start --head --port "$port" --num-cpus "$cores" --block &
until srun --nodes 1 --ntasks 1 --nodelist "$head_node" --overlap \
  ray health-check --address "$head_node:$port"; do sleep 2; done
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  srun --nodes $((SLURM_JOB_NUM_NODES - 1)) --exclude "$head_node" --overlap \
    ray start --address "$head_node:$port" --block &
fi
srun --nodes 1 --ntasks 1 --nodelist "$head_node" --overlap \
  lookfurther train "$@" --cluster "$head_node:$port"
