module turnout.tests/protocol

go 1.24
