"""The science: one file per residual design. The contract is attnres_cli.nn.residual.Residual."""
