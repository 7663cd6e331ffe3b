"""The GPT with checkpoints and with NVRx's heartbeats, for `ft_launcher`: the arm `nvrx` of `torchrelay bench race`."""

import race_checkpoint
from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient


def main() -> None:
    monitor = RankMonitorClient()
    monitor.init_workload_monitoring()
    race_checkpoint.main(each_step=monitor.send_heartbeat)
    monitor.shutdown_workload_monitoring()


if __name__ == "__main__":
    main()
