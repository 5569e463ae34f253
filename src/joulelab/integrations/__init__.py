"""joulelab inside what people train with: Hugging Face, Lightning, Keras, Jupyter, W&B, MLflow, a bare loop."""
