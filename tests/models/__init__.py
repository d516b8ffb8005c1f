"""Small models whose every state is visited, ordered by the very functions of the product."""
