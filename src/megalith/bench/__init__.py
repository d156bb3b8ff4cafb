"""The suites behind `megalith bench`: candidates and peers side by side, results saved with the machine."""
