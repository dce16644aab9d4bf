"""The page and the exports of a comparison."""
