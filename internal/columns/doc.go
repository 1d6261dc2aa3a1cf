// Package columns lays out text for a terminal, whose characters are not all of one
// width: those of East Asia take two columns each, and marks that stand over another
// character none.
//
// Characters that are wide only in East Asian fonts ("ambiguous", such as ─) count as
// narrow, which they are in most terminals.
package columns
