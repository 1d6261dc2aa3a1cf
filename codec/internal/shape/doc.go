// Package shape computes how many bytes an array has. All code in codec that takes a
// shape from outside uses it.
package shape
