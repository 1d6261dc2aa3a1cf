package main

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// form is the encoding of a field.
type form string

// The forms. Those up to magic have a fixed size.
const (
	number  form = "number" // of size bytes
	signed  form = "i64"
	enum    form = "enum"
	boolean form = "bool"
	fixed   form = "fixed"
	zeros   form = "zeros"
	magic   form = "magic"
	str     form = "str"
	text    form = "text"
	data    form = "bytes"
	inline  form = "inline"
	attrs   form = "attrs"
	numbers form = "numbers"
	list    form = "list" // of parts
	part    form = "part"
)

// field is one field of a struct of the table, in the order of the wire.
type field struct {
	goName string
	name   string // on the wire
	form   form
	goType string
	size   int // in bytes; 0 if it is not fixed
	least  int // of enum
	most   int // of enum, str, text, data, inline
	bound  string
	of     *structure // of list and part
	doc    string
}

// structure is a struct of the table: a message, or a part of messages.
type structure struct {
	goName      string
	name        string // on the wire
	doc         string
	fields      []field
	kind        int // 0: a part
	direction   string
	descriptors int
	note        string
}

type table struct {
	messages []*structure // by kind
	parts    []*structure // in the order of the sources
	version  int
	scope    *types.Scope
}

// readTable reads the structs of package wire. It skips generated files, and therefore ignores
// errors of types; a missing constant or type that the table needs is an error.
func readTable(dir string) (*table, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		if !ast.IsGenerated(f) {
			files = append(files, f)
		}
	}
	return newTable(fset, files)
}

func newTable(fset *token.FileSet, files []*ast.File) (*table, error) {
	config := types.Config{Error: func(error) {}}
	pkg, _ := config.Check("wire", fset, files, nil) // see readTable
	t := &table{scope: pkg.Scope()}
	specs := map[*structure]*ast.StructType{}
	for _, f := range files {
		for _, decl := range f.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok || d.Tok != token.TYPE || d.Doc == nil {
				continue
			}
			spec := d.Specs[0].(*ast.TypeSpec)
			s, err := directive(spec.Name.Name, d.Doc)
			if s == nil && err == nil {
				continue
			}
			shape, ok := spec.Type.(*ast.StructType)
			if err == nil && !ok {
				err = errors.New("not a struct")
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", spec.Name.Name, err)
			}
			if specs[s] = shape; s.kind == 0 {
				t.parts = append(t.parts, s)
			} else {
				t.messages = append(t.messages, s)
			}
		}
	}
	slices.SortStableFunc(t.messages, func(a, b *structure) int { return cmp.Compare(a.kind, b.kind) })
	for i, m := range t.messages {
		if i > 0 && m.kind == t.messages[i-1].kind {
			return nil, fmt.Errorf("%s and %s both have kind %d", t.messages[i-1].goName, m.goName, m.kind)
		}
	}
	for _, s := range slices.Concat(t.parts, t.messages) {
		if err := t.addFields(s, specs[s]); err != nil {
			return nil, fmt.Errorf("%s.%w", s.goName, err)
		}
	}
	version, err := t.constant("Version")
	t.version = int(version)
	return t, err
}

// directions maps the words of docs/protocol.md to Go.
var directions = map[string]string{
	"to the host":             "ToHost",
	"to the client":           "ToClient",
	"both":                    "ToHost | ToClient",
	"to a peer":               "ToPeer",
	"to the host or a peer":   "ToHost | ToPeer",
	"to the client or a peer": "ToClient | ToPeer",
	"both, and to a peer":     "ToHost | ToClient | ToPeer",
}

// directive reads the comment of a struct. It returns nil for a struct that is not in the table.
func directive(name string, doc *ast.CommentGroup) (*structure, error) {
	line := ""
	for _, c := range doc.List {
		if strings.HasPrefix(c.Text, "//wire:") {
			line = strings.TrimPrefix(c.Text, "//wire:")
		}
	}
	if line == "" {
		return nil, nil
	}
	s := &structure{goName: name, name: snakeCase(name), doc: doc.Text()}
	if line == "part" {
		return s, nil
	}
	match := regexp.MustCompile(`^message (\d+) ([^;]+)(?:; (.+))?$`).FindStringSubmatch(line)
	if len(match) == 0 || directions[match[2]] == "" {
		return nil, fmt.Errorf("//wire:%s: want //wire:message KIND DIRECTION; NOTE, or //wire:part", line)
	}
	s.direction, s.note = match[2], match[3]
	for n, words := range []string{"one descriptor", "two descriptors", "three descriptors"} {
		if strings.HasPrefix(s.note, words) {
			s.descriptors = n + 1
		}
	}
	var err error
	if s.kind, err = strconv.Atoi(match[1]); err != nil || s.kind < 1 || s.kind > 1<<16-1 {
		return nil, fmt.Errorf("kind %s: want 1 to 65535", match[1])
	}
	return s, nil
}

func (t *table) addFields(s *structure, shape *ast.StructType) error {
	for _, f := range shape.Fields.List {
		if len(f.Names) != 1 {
			return errors.New("a field is embedded, or two are declared at once: declare one a line")
		}
		var tag string
		if f.Tag != nil {
			tag = reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("wire")
		}
		doc := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
		made, err := t.field(f.Names[0].Name, types.ExprString(f.Type), tag)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Names[0].Name, err)
		}
		for i := range made {
			if made[i].goName != "" {
				made[i].doc = doc
			}
			if err := t.described(made[i], doc); err != nil {
				return fmt.Errorf("%s: %w", f.Names[0].Name, err)
			}
		}
		s.fields = append(s.fields, made...)
	}
	return nil
}

// forms maps the Go types that need no tag to their fields.
var forms = map[string]field{
	"uint8":             {form: number, size: 1},
	"uint16":            {form: number, size: 2},
	"uint32":            {form: number, size: 4},
	"uint64":            {form: number, size: 8},
	"Code":              {form: number, size: 2},
	"int64":             {form: signed, size: 8},
	"bool":              {form: boolean, size: 1, most: 1},
	"string":            {form: str, bound: "MaxName"},
	"[]byte":            {form: data},
	"[]uint32":          {form: numbers},
	"map[string]string": {form: attrs},
}

// field returns a field, with the magic before it and the reserved bytes after it.
func (t *table) field(goName, goType, tag string) (made []field, err error) {
	f, ok := forms[goType]
	f.goName, f.name, f.goType = goName, snakeCase(goName), goType
	if !ok {
		if err := t.other(&f, goType); err != nil {
			return nil, err
		}
	}
	var before, behind []field
	for option := range strings.SplitSeq(tag, ",") {
		key, value, _ := strings.Cut(option, "=")
		least, most, bounds := strings.Cut(option, "..")
		switch {
		case option == "":
		case option == "text" && f.form == str:
			f.form, f.bound = text, "MaxText"
		case option == "inline" && goName == "Payload" && f.form == data:
			f.form, f.bound = inline, "MaxInline"
		case key == "most" && (f.form == str || f.form == data):
			f.bound = value
		case key == "reserved":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > 8 {
				return nil, fmt.Errorf("reserved=%s: want 1 to 8 bytes", value)
			}
			behind = []field{{form: zeros, size: n}}
		case option == "magic":
			v, err := t.constant("Magic")
			if err != nil {
				return nil, err
			}
			doc := fmt.Sprintf("`%#x`, the bytes `% x`", v, binary.LittleEndian.AppendUint64(nil, v))
			before = []field{{form: magic, name: "magic", size: 8, doc: doc}}
		case bounds && goType == "uint8":
			f.form = enum
			f.least, err = strconv.Atoi(least)
			if err == nil {
				f.most, err = strconv.Atoi(most)
			}
			if err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("the tag %q says nothing of a %s", option, goType)
		}
	}
	if f.bound != "" {
		bound, err := t.constant(f.bound)
		if err != nil {
			return nil, err
		}
		f.most = int(bound)
	}
	if f.form == data && f.bound == "" {
		return nil, errors.New("bytes without a bound: give it the tag most=NAME")
	}
	return slices.Concat(before, []field{f}, behind), nil
}

// other sets the form of a field whose type is declared in package wire, or is an array.
func (t *table) other(f *field, goType string) error {
	if match := regexp.MustCompile(`^\[(\d+)\]byte$`).FindStringSubmatch(goType); match != nil {
		n, err := strconv.Atoi(match[1])
		f.form, f.size = fixed, n
		return err
	}
	f.form = part
	name, listed := strings.CutPrefix(goType, "[]")
	if listed {
		f.form = list
	}
	for _, p := range t.parts {
		if p.goName == name {
			f.of = p
			return nil
		}
	}
	named := t.scope.Lookup(name)
	if named == nil || listed || named.Type().Underlying() != types.Typ[types.Uint8] {
		return fmt.Errorf("no field is written as %s: see the types in wiregen/main.go", goType)
	}
	values := t.values(name)
	if len(values) == 0 {
		return fmt.Errorf("the type %s has no constants", goType)
	}
	f.form, f.size, f.least, f.most = enum, 1, values[0].number, values[len(values)-1].number
	return nil
}

// value is a constant of an enumeration.
type value struct {
	name   string
	number int
}

// values are the constants of a type of package wire, from the least to the highest.
func (t *table) values(goType string) (all []value) {
	for _, name := range t.scope.Names() {
		if c, ok := t.scope.Lookup(name).(*types.Const); ok && c.Type() == t.scope.Lookup(goType).Type() {
			v, _ := constant.Int64Val(c.Val())
			all = append(all, value{name, int(v)})
		}
	}
	slices.SortFunc(all, func(a, b value) int { return a.number - b.number })
	return all
}

// described checks that the comment of a field names each value of its enumeration.
func (t *table) described(f field, doc string) error {
	if f.form != enum || f.goType == "uint8" {
		return nil
	}
	for _, v := range t.values(f.goType) {
		if !strings.Contains(" "+doc, fmt.Sprintf(" %d ", v.number)) {
			return fmt.Errorf("the comment does not say what %d is, %s", v.number, v.name)
		}
	}
	return nil
}

// constant is the value of a constant of package wire.
func (t *table) constant(name string) (uint64, error) {
	c, ok := t.scope.Lookup(name).(*types.Const)
	if !ok {
		return 0, fmt.Errorf("package wire has no constant %s", name)
	}
	v, ok := constant.Uint64Val(constant.ToInt(c.Val()))
	if !ok {
		return 0, fmt.Errorf("the constant %s is no number of 64 bits", name)
	}
	return v, nil
}

// least is the smallest encoding of a part, in bytes.
func (s *structure) least() (n int) {
	for _, f := range s.fields {
		switch f.form {
		case str, text, attrs, numbers, list:
			n += 2
		case data, inline:
			n += 4
		case part:
			n += f.of.least()
		default:
			n += f.size
		}
	}
	return n
}

// runs groups consecutive fields of fixed size; every other field is a group by itself.
func runs(fields []field) (all [][]field) {
	known := false
	for _, f := range fields {
		if f.size > 0 && known {
			all[len(all)-1] = append(all[len(all)-1], f)
		} else {
			all = append(all, []field{f})
		}
		known = f.size > 0
	}
	return all
}

func sizeOf(run []field) (n int) {
	for _, f := range run {
		n += f.size
	}
	return n
}

// snakeCase turns VersionMin, PID and TraceID into version_min, pid and trace_id.
func snakeCase(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 && unicode.IsLower(runes[i-1]) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
