// Package layers holds the tests that keep the shape of the repository: which
// package may import which, where unsafe code may stand, what every folder
// needs, how large packages and types may be, what needs a caller, and what was
// deleted and stays so. It has no code of its own.
//
// A failure names the rule, the file and what to do. The rules are the tables
// of rules_test.go, figures_test.go and promises_test.go; a change of shape
// starts there and is explained in docs/adr.
package layers
