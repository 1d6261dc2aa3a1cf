package config

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

type kind uint8

const (
	kindNull kind = iota
	kindBool
	kindInt
	kindFloat
	kindString
	kindList
	kindMap
)

// A node is a value of the file: aliases and merge keys are resolved, keys
// are text and unique. The target of an alias is one node with many parents.
type node struct {
	kind  kind
	pos   Position
	value any  // bool; int64, or uint64 above it; float64; string
	plain bool // written without quotes
	// variable says that variables were replaced in this text: where a number or
	// a flag is wanted, it may be spelt out.
	variable bool
	// unset says that one of the variables in it is not set, and stands as it is written.
	unset   bool
	items   []*node
	entries []entry

	values int // this node and all below it, shared ones counted at each use
	height int // levels of lists and maps below and including this one
}

type entry struct {
	key   string
	pos   Position
	value *node
}

// get returns the value of a key, nil if there is none.
func (n *node) get(key string) *node {
	for _, e := range n.entries {
		if e.key == key {
			return e.value
		}
	}
	return nil
}

// keyPos returns where a key of a map stands.
func (n *node) keyPos(key string) Position {
	for _, e := range n.entries {
		if e.key == key {
			return e.pos
		}
	}
	return n.pos
}

// A builder makes nodes of the parser's tree.
type builder struct {
	*checker
	anchors map[string]*node
	full    bool // a bound was passed: everything further is left out
}

func (c *checker) tree(body ast.Node) *node {
	b := &builder{checker: c, anchors: make(map[string]*node)}
	root := b.node(body, 1)
	if b.full {
		return nil
	}
	return root
}

// node builds one value. A part that is refused becomes a null: the problem
// has been reported, and the checks that follow still see the rest.
func (b *builder) node(n ast.Node, depth int) *node {
	pos := b.pos(n.GetToken())
	if !b.spend(1, depth, pos) {
		return b.leaf(kindNull, pos, nil)
	}
	switch n := n.(type) {
	case *ast.NullNode:
		return b.leaf(kindNull, pos, nil)
	case *ast.BoolNode:
		return b.leaf(kindBool, pos, n.Value)
	case *ast.IntegerNode:
		return b.integer(n, pos)
	case *ast.FloatNode:
		return b.float(n.Value, pos)
	case *ast.InfinityNode, *ast.NanNode:
		return b.float(math.Inf(1), pos)
	case *ast.StringNode:
		return b.text(n, pos)
	case *ast.LiteralNode:
		return b.leaf(kindString, pos, n.Value.Value)
	case *ast.SequenceNode:
		return b.list(n, depth, pos)
	case *ast.MappingNode:
		return b.mapping(n.Values, depth, b.mapPos(n, pos))
	case *ast.MappingValueNode:
		return b.mapping([]*ast.MappingValueNode{n}, depth, b.pos(n.Key.GetToken()))
	case *ast.AnchorNode:
		return b.anchor(n, depth)
	case *ast.AliasNode:
		return b.alias(n, depth, pos)
	case *ast.TagNode:
		b.problemf(pos, "the tag %s: tags are not supported, write the value without it", shorten(n.Start.Value))
	default:
		b.problemf(pos, "a %s cannot stand here", n.Type())
	}
	return b.leaf(kindNull, pos, nil)
}

func (b *builder) pos(tk *token.Token) Position {
	pos := tokenPos(tk)
	pos.File = b.origin
	return pos
}

func (b *builder) leaf(k kind, pos Position, value any) *node {
	return &node{kind: k, pos: pos, value: value, values: 1}
}

// spend accounts for values about to be added at a depth.
func (b *builder) spend(values, depth int, pos Position) bool {
	b.values += values
	switch {
	case b.full:
	case b.values > MaxValues:
		b.full = true
		b.problemf(pos, "more than %d values once aliases are expanded", MaxValues)
	case depth > MaxDepth+1:
		b.full = true
		b.problemf(pos, "nested more than %d levels deep once aliases are expanded", MaxDepth)
	}
	return !b.full
}

// leadingZero is a number that YAML 1.1 takes for octal, or for text, and YAML 1.2 for decimal.
var leadingZero = regexp.MustCompile(`^[-+]?0\d+$`)

// refuseLeadingZero reports a number that programs read differently.
func (b *builder) refuseLeadingZero(text string, pos Position) *node {
	b.problemf(pos, "the number %s begins with a zero: some programs read it as octal, and others as decimal. Leave the zero out, or quote it if it is text", shorten(text))
	return b.leaf(kindNull, pos, nil)
}

func (b *builder) integer(n *ast.IntegerNode, pos Position) *node {
	if text := n.GetToken().Value; leadingZero.MatchString(text) {
		return b.refuseLeadingZero(text, pos)
	}
	switch v := n.Value.(type) {
	case int64:
		return b.leaf(kindInt, pos, v)
	case uint64:
		if v <= math.MaxInt64 {
			return b.leaf(kindInt, pos, int64(v))
		}
		return b.leaf(kindInt, pos, v)
	}
	b.problemf(pos, "the number %s cannot be read", shorten(n.GetToken().Value))
	return b.leaf(kindNull, pos, nil)
}

func (b *builder) float(v float64, pos Position) *node {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		b.problemf(pos, "not a finite number: stages receive their settings as JSON, which has no infinity and no NaN")
		return b.leaf(kindNull, pos, nil)
	}
	return b.leaf(kindFloat, pos, v)
}

// number is what JSON and the YAML core schema call a number. The parser
// leaves some of these as text: integers beyond 64 bits, and 1e-5.
var number = regexp.MustCompile(`^[-+]?([0-9]+|(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)$`)

func (b *builder) text(n *ast.StringNode, pos Position) *node {
	leaf := b.leaf(kindString, pos, n.Value)
	tk := n.GetToken()
	leaf.plain = tk.Type != token.SingleQuoteType && tk.Type != token.DoubleQuoteType
	if !leaf.plain || !number.MatchString(n.Value) {
		return leaf
	}
	if leadingZero.MatchString(n.Value) {
		return b.refuseLeadingZero(n.Value, pos)
	}
	v, err := strconv.ParseFloat(n.Value, 64)
	if err != nil || !strings.ContainsAny(n.Value, ".eE") {
		b.problemf(pos, "the number %s does not fit in 64 bits: quote it if it is text", shorten(n.Value))
		return leaf
	}
	return b.float(v, pos)
}

func (b *builder) list(n *ast.SequenceNode, depth int, pos Position) *node {
	list := &node{kind: kindList, pos: pos, values: 1, height: 1}
	for _, item := range n.Values {
		list.items = append(list.items, b.node(item, depth+1))
	}
	for _, item := range list.items {
		list.values += item.values
		list.height = max(list.height, item.height+1)
	}
	return list
}

// mapping reads the entries as they stand first and merges after that, so
// that an explicit key wins over a merged one wherever the merge key stands.
func (b *builder) mapping(values []*ast.MappingValueNode, depth int, pos Position) *node {
	m := &node{kind: kindMap, pos: pos}
	seen := make(map[string]Position, len(values))
	var merges []*ast.MappingValueNode
	for _, v := range values {
		if v.Key.IsMergeKey() {
			merges = append(merges, v)
			continue
		}
		key, at, ok := b.key(v.Key)
		if !ok {
			continue
		}
		if first, repeated := seen[key]; repeated {
			b.problemf(at, "the key %q is repeated, first on line %d: only one can count", shorten(key), first.Line)
			continue
		}
		seen[key] = at
		value := b.node(v.Value, depth+1)
		if value.kind == kindNull {
			value = b.leaf(kindNull, at, nil) // one left out has no place of its own
		}
		m.entries = append(m.entries, entry{key, at, value})
	}
	for _, v := range merges {
		b.merge(m, seen, v, depth)
	}
	m.values, m.height = 1, 1
	for _, e := range m.entries {
		m.values += e.value.values
		m.height = max(m.height, e.value.height+1)
	}
	return m
}

func (b *builder) key(k ast.MapKeyNode) (string, Position, bool) {
	pos := b.pos(k.GetToken())
	switch k := k.(type) {
	case *ast.StringNode:
		return k.Value, pos, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return k.GetToken().Value, pos, true
	}
	b.problemf(pos, "a key must be plain text")
	return "", pos, false
}

// merge adds the entries of a map, or of a list of maps, under a merge key.
func (b *builder) merge(m *node, seen map[string]Position, v *ast.MappingValueNode, depth int) {
	source := b.node(v.Value, depth)
	maps := []*node{source}
	if source.kind == kindList {
		maps = source.items
	}
	for _, from := range maps {
		if from.kind != kindMap {
			if !b.full {
				b.problemf(from.pos, "<< takes a map or a list of maps, not %s", describe(from))
			}
			continue
		}
		for _, e := range from.entries {
			if _, taken := seen[e.key]; !taken {
				seen[e.key] = e.pos
				m.entries = append(m.entries, e)
			}
		}
	}
}

// anchor names a value once it is complete: a value that contains itself
// finds its own name undefined.
func (b *builder) anchor(n *ast.AnchorNode, depth int) *node {
	value := b.node(n.Value, depth)
	b.anchors[n.Name.GetToken().Value] = value
	return value
}

func (b *builder) alias(n *ast.AliasNode, depth int, pos Position) *node {
	name := n.Value.GetToken().Value
	target := b.anchors[name]
	if target == nil {
		b.problemf(pos, "the alias *%s: no complete value before it is named &%s", shorten(name), shorten(name))
		return b.leaf(kindNull, pos, nil)
	}
	if !b.spend(target.values, depth+target.height, pos) {
		return b.leaf(kindNull, pos, nil)
	}
	return target
}

// mapPos is where a map starts: its bracket, or its first key in block style,
// where the parser gives the colon after it.
func (b *builder) mapPos(n *ast.MappingNode, pos Position) Position {
	if n.IsFlowStyle || len(n.Values) == 0 {
		return pos
	}
	return b.pos(n.Values[0].Key.GetToken())
}
