"""What every part of fedsim shares: data types, errors, random streams, vectors, files."""
