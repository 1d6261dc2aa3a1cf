// Package hostnode holds what a host and a node must encode in the same way: errors and their codes,
// the end of a request, its number and trace, reports, and the lanes of each wait mode. Packages
// bus/host and bus/node use it.
//
// Everything in it is a value or a function of its arguments.
package hostnode
