#!/bin/bash
#SBATCH --job-name=weft
#SBATCH --nodes=2-4              # four, or as many as there are
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@180        # 3 minutes before the end: finish the step and save
#SBATCH --requeue                # after a node failed or the job was preempted
#SBATCH --open-mode=append
# sbatch slurm.sh run.toml --run FOLDER

export WEFT_ELASTIC=4            # of 4 processes some may be missing: the others go on, with a layout for what is left
# With GPUs a process for each: `#SBATCH --gpus-per-node=8` above, `--ntasks-per-node=8` here, and 32 processes.
srun --ntasks-per-node=1 --kill-on-bad-exit=1 weft train "$@"
status=$?
case $status in
  0 | 1 | 2) exit $status ;;     # done, or an error that is explained: the same would happen again
esac
if [ "${SLURM_RESTART_COUNT:-0}" -lt 10 ]; then
  echo "srun ended with status $status; requeued"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
