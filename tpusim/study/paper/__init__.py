"""The paper that configs/tpu_v2.yaml cites, figure by figure and claim by claim."""
