"""What is trained: the Workload and its readers, the classifier, the pipeline."""
