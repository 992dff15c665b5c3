#!/bin/bash
# Trains as processes of Open MPI, started again when one dies: mpi.sh run.toml --run FOLDER ...
# MPI says how many there are and on which hosts: MPI="-n 16 --hostfile hosts" mpi.sh ...
for restart in $(seq 0 10); do
  mpirun ${MPI:--n 4} weft train "$@"
  status=$?
  case $status in
    0 | 1 | 2) exit $status ;;   # done, or an error that is explained: the same would happen again
    130 | 143) exit $status ;;   # asked to stop, by Ctrl-C or SIGTERM, when there was nothing to save
  esac
  echo "mpirun ended with status $status; restart $((restart + 1))"
done
exit $status
