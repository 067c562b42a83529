"""What the tests share; no test module imports another.

`wait`, `clock`: time. `wire`: a plain Flight client. `server`: servers, and the bytes that they leave on disk.
`ledger`, `topics`, `store_contract`: the rooms of these names, without a server. `rows`, `spark_types`: data of many
shapes. `spark`, `connect`, `streams`: Spark, its Connect server, its queries; `spark_faults`: faults in its workers.
`processes`, `faults`, `proxy`, `raw_flight`: faults in processes, disks, connections and bytes. `cli`, `pages`: the
command line and the documentation. `programs`: what tests start in processes of their own.
"""
