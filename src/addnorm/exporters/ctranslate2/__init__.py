"""Export to CTranslate2, an inference engine for CPUs and GPUs with int8 arithmetic."""
