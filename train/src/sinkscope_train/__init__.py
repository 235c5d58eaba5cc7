"""Small models that we train and ship, one for each model of the paper: recipes, data, training, weights."""
