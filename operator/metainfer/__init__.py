"""meta infer: decides by measurement where and how each inference Deployment runs, and keeps it true."""
