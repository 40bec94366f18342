"""Recovery: restores the store from its data path when nsqd starts."""
