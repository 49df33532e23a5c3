#!/usr/bin/env bash
#SBATCH --job-name lookfurther
#SBATCH --ntasks-per-node 1
#SBATCH --exclusive
#SBATCH --time 24:00:00
#SBATCH --signal B:USR1@120
# sbatch --nodes N deploy/slurm.sh PRESET --env ENV [settings]: learner on the first node, actors on all.
set -euo pipefail
address=$SLURMD_NODENAME:6379 # Slurm runs this script on the first node
cores=$((SLURM_CPUS_ON_NODE - 1)) # one core of the first node is the learner's
# An actor for each other core; it waits until its node has joined. 8(x3),4: three nodes with 8 cores, one with 4.
actors=$(($(sed 's/(x\([0-9]*\))/*\1/g; s/,/+/g' <<< "$SLURM_JOB_CPUS_PER_NODE") - 1))

# A token of this job alone, in a file that only this user can read.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$PWD/.ray-token-$SLURM_JOB_ID"
(umask 077 && python -c "import secrets; print(secrets.token_hex(32), end='')" > "$RAY_AUTH_TOKEN_PATH")
# shellcheck disable=SC2046 # one process id per word
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"; kill $(jobs -p) 2> /dev/null || true' EXIT

ray start --head --port "${address#*:}" --num-cpus "$cores" --block &
ray_head=$!
until ray health-check --address "$address" &> /dev/null; do
  kill -0 "$ray_head" 2> /dev/null || { echo "Ray does not start on $SLURMD_NODENAME" >&2; exit 1; }
  sleep 2
done
workers=$((SLURM_JOB_NUM_NODES - 1))
if [ "$workers" -gt 0 ]; then
  srun --cpu-bind none --nodes "$workers" --ntasks "$workers" --exclude "$SLURMD_NODENAME" \
    ray start --address "$address" --block &
fi

# Slurm sends USR1 to this script alone, before the time is over: the learner saves while its actors still play.
trap 'kill -TERM $!' USR1 # the last command in the background is the learner
lookfurther train "$1" --cluster "$address" --cluster-actors "$actors" "${@:2}" &
learner=$!
status=0
wait "$learner" || status=$?
while kill -0 "$learner" 2> /dev/null; do # a signal ends the first wait
  status=0
  wait "$learner" || status=$?
done
exit "$status"
