"""
Datasets and vocabularies for RETURNN configs.
"""
