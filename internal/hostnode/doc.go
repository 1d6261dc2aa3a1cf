// Package hostnode has what a host and a node must say alike: errors and their codes, the end of a
// request, its number and trace, reports, and the lanes of a way to wait. Packages bus/host and
// bus/node are its users.
//
// Everything in it is a value or a function of its arguments.
package hostnode
