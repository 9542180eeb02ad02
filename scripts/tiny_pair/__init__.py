"""Training of the bundled model pair: data, target, distilled draft, evaluation and export."""
