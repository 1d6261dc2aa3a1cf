// Package shape computes how many bytes an array has. It is shared by
// everything in codec that takes a shape from outside.
package shape
