"""Chaos: faults of all kinds fall while a workload runs; then what went in is compared with what came out.

The rig knows a server, a proxy and rows: `rig`, `server`, `hooks`, `oracle`, `faults`, `schedule`, `run`. A workload is
one file that implements `rig.Workload`: `topic_stream` publishes to a topic, `subscription_stream` to Google's
emulator, and Spark streams it into a sink (`stream`, `driver`, `spark_processes`); `queue_chain` writes with a queue,
whose rows workers bring through another one into a sink (`worker`, `deliveries`); `job_chain` runs a job of two stages
and a sink (`job_driver`, `job_stages`). What the last two share is `chain`.
"""
