// Package layers holds the tests that keep the shape of the repository: which
// package may import which and why no more, in which files unsafe code stands,
// that package bus has no socket, and that the pages name what is in the tree.
// It has no code of its own.
//
// A failure names the rule, the file and the change to make. The rules are the
// tables of rules_test.go; a change of shape starts there and is explained in
// docs/adr.
package layers
