"""What collections of tables are to torch: parameters, dtypes, copies, states, gradients that wait."""
