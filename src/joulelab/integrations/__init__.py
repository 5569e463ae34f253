"""Use joulelab in training frameworks and tools: Hugging Face, Lightning, Keras, Jupyter, W&B, MLflow, plain loops."""
