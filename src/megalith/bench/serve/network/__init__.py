"""`megalith bench serve`: models behind servers, asked over the network, ours beside others."""
