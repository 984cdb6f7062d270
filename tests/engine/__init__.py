"""A package, so that its tests share one Ray (fixtures of scope "package")."""
