// Package columns aligns text in a terminal, whose characters have different widths:
// characters of East Asia take two columns each, and combining marks take none.
//
// Characters that are wide only in East Asian fonts ("ambiguous", such as ─) count as
// narrow, which they are in most terminals.
package columns
