package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds on a file. Real pipeline files have a few kilobytes, a few hundred
// values and a nesting of six.
const (
	// MaxFileBytes is the largest file that is read.
	MaxFileBytes = 4 << 20
	// MaxDepth is the deepest nesting of lists and maps.
	MaxDepth = 64
	// MaxValues is the largest number of values, counted after every alias
	// and merge key has been replaced by what it stands for.
	MaxValues = 1 << 16

	// maxIndicators bounds the tokens, and so the memory, of the lexer: it
	// makes at most three, of some 200 bytes each, for one of the characters
	// that structure YAML.
	maxIndicators = 2 * MaxValues
	// maxKeys bounds the keys of maps without brackets, all together: the parser
	// takes the rest of such a map for a map in it, so that the time for it grows with
	// the square of its keys, and the stack with each.
	maxKeys    = 1 << 13
	indicators = "[]{},:-?&*!|>#'\"%<.@`"
)

// parse returns the root of the file's one document, or nil after reporting
// why there is none.
func (c *checker) parse(data []byte) *node {
	text, ok := c.source(data)
	if !ok {
		return nil
	}
	tokens, ok := c.tokens(text)
	if !ok {
		return nil
	}
	file, err := parseTokens(tokens)
	if err != nil {
		c.syntax(err)
		return nil
	}
	if len(file.Docs) > 1 {
		c.problemf(documentPos(file.Docs[1]), "a second document starts here: a pipeline file holds one")
		return nil
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		c.problemf(start, "the file is empty: it needs stage_args or stages")
		return nil
	}
	return c.tree(file.Docs[0].Body)
}

// source checks what can be checked about the bytes alone and returns them in a
// form whose columns the lexer counts right: it skips a byte order mark and,
// since it does not count tabs that indent JSON, turns those into spaces.
func (c *checker) source(data []byte) (string, bool) {
	if len(data) > MaxFileBytes {
		c.problemf(start, "the file has more than %d bytes, the most that is read", MaxFileBytes)
		return "", false
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if at := invalidUTF8(data); at >= 0 {
		c.problemf(positionAt(data, at), "the byte 0x%02x is not UTF-8", data[at])
		return "", false
	}
	if at := bytes.IndexByte(data, 0); at >= 0 {
		c.problemf(positionAt(data, at), "a NUL byte in the text")
		return "", false
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return "", true
	}
	if json.Valid(data) {
		return untab(data), true
	}
	if strings.EqualFold(filepath.Ext(c.file), ".json") {
		var syntax *json.SyntaxError
		if err := json.Unmarshal(data, new(any)); errors.As(err, &syntax) {
			at := max(0, int(syntax.Offset)-1)
			c.problemf(positionAt(data, at), "not JSON: %v", syntax)
			return "", false
		}
	}
	return strings.ReplaceAll(string(data), "\r\n", "\n"), true // else the lexer keeps the \r of a line in quotes
}

func invalidUTF8(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

func positionAt(data []byte, offset int) Position {
	before := data[:min(offset, len(data))]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	return Position{Line: line, Column: column}
}

// untab replaces tabs in valid JSON, where they can only stand between tokens.
func untab(data []byte) string {
	return strings.ReplaceAll(string(data), "\t", " ")
}

// tokens runs the lexer and refuses what is nested too deep for the parser,
// which recurses once a level: Go cannot recover from an exhausted stack.
func (c *checker) tokens(text string) (token.Tokens, bool) {
	count := 0
	for i := range len(text) {
		if strings.IndexByte(indicators, text[i]) < 0 {
			continue
		}
		if count++; count > maxIndicators {
			c.problemf(positionAt([]byte(text), i), "more than %d characters that structure YAML: the file is too large", maxIndicators)
			return nil, false
		}
	}
	tokens := lexer.Tokenize(text)
	var depth nesting
	keys := 0
	for _, tk := range tokens {
		if depth.add(tk) > MaxDepth {
			c.problemf(tokenPos(tk), "nested more than %d levels deep", MaxDepth)
			return nil, false
		}
		if tk.Type != token.MappingValueType {
			continue
		}
		if depth.flow > 0 {
			if touches(tk) {
				c.problemf(tokenPos(tk), "no space behind the colon: YAML takes %s for one text, and some programs for a pair. Add a space, or quotes", shorten(tk.Prev.Value+":"+tk.Next.Value))
				return nil, false
			}
			continue
		}
		if keys++; keys > maxKeys {
			c.problemf(tokenPos(tk), "more than %d keys: the file is too large", maxKeys)
			return nil, false
		}
	}
	return tokens, true
}

// touches reports whether a colon between brackets is part of a text, as YAML has it.
func touches(colon *token.Token) bool {
	before, behind := colon.Prev, colon.Next
	if before == nil || behind == nil || before.Type == token.DoubleQuoteType || before.Type == token.SingleQuoteType {
		return false
	}
	switch behind.Type {
	case token.MappingEndType, token.SequenceEndType, token.CollectEntryType, token.MappingStartType, token.SequenceStartType:
		return false
	default:
		return behind.Position.Line == colon.Position.Line && behind.Position.Column == colon.Position.Column+1
	}
}

// nesting is an upper bound on the depth of the parser at a token: the open
// brackets, the block collections (each starts to the right of the one around
// it), and the properties in front of one value.
type nesting struct {
	flow       int
	columns    []int // of the open block collections, ascending
	properties int   // anchors, tags and explicit keys since the last value
	name       bool  // the next token is an anchor's name
	last       int   // column of the token before
}

func (d *nesting) add(tk *token.Token) int {
	switch tk.Type {
	case token.SequenceStartType, token.MappingStartType:
		d.flow++
	case token.SequenceEndType, token.MappingEndType:
		d.flow = max(0, d.flow-1)
	case token.SequenceEntryType, token.MappingKeyType:
		d.open(tk.Position.Column)
	case token.MappingValueType:
		d.open(d.last)
	}
	d.property(tk)
	d.last = tk.Position.Column
	return d.flow + len(d.columns) + d.properties
}

// open notes a block collection that has an entry at a column. Inside
// brackets, columns say nothing.
func (d *nesting) open(column int) {
	if d.flow > 0 {
		return
	}
	for len(d.columns) > 0 && d.columns[len(d.columns)-1] >= column {
		d.columns = d.columns[:len(d.columns)-1]
	}
	d.columns = append(d.columns, column)
}

func (d *nesting) property(tk *token.Token) {
	switch tk.Type {
	case token.AnchorType, token.TagType, token.MappingKeyType:
		d.properties++
		d.name = tk.Type == token.AnchorType
	default:
		if !d.name {
			d.properties = 0
		}
		d.name = false
	}
}

// parseTokens parses, and turns a panic into an error: the parser is not
// ours, and no file may end the process that reads it.
func parseTokens(tokens token.Tokens) (file *ast.File, err error) {
	defer func() {
		if recover() != nil {
			file, err = nil, errors.New("the YAML parser cannot read this file")
		}
	}()
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

// syntax reports an error of the parser where the parser says it is.
func (c *checker) syntax(err error) {
	var located interface {
		GetToken() *token.Token
		GetMessage() string
	}
	if errors.As(err, &located) && located.GetToken() != nil {
		c.problemf(tokenPos(located.GetToken()), "not YAML: %s", located.GetMessage())
		return
	}
	c.problemf(start, "not YAML: %v", err)
}

func tokenPos(tk *token.Token) Position {
	if tk == nil || tk.Position == nil {
		return start
	}
	return Position{Line: max(1, tk.Position.Line), Column: max(1, tk.Position.Column)}
}

func documentPos(doc *ast.DocumentNode) Position {
	if doc.Start != nil {
		return tokenPos(doc.Start)
	}
	return tokenPos(doc.GetToken())
}
