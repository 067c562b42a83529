"""The chaos run: one workload under every fault, checked by laws."""
