"""L2: feature-level draft heads: small modules that read the target's hidden states and guess its next tokens."""

from decoder.heads.config import HeadConfig, TargetShape
from decoder.heads.eagle import FeatureHead

__all__ = ["FeatureHead", "HeadConfig", "TargetShape"]
