package cli

import (
	"bufio"
	"io"
	"strings"
	"unicode/utf8"
)

// table prints aligned columns.
type table struct {
	right []bool
	rows  [][]string // the header first, if there is one
}

// newTable makes a table with a header; names that begin with '>' are of columns aligned to the right.
func newTable(header ...string) *table {
	t := &table{right: make([]bool, len(header))}
	names := make([]string, len(header))
	for i, name := range header {
		names[i], t.right[i] = strings.CutPrefix(name, ">")
	}
	t.rows = append(t.rows, names)
	return t
}

// newSheet makes a table of names and values without a header.
func newSheet() *table { return &table{right: make([]bool, 2)} }

// add adds a row; empty cells show as '-'.
func (t *table) add(cells ...string) {
	row := make([]string, len(t.right))
	for i := range row {
		row[i] = "-"
		if i < len(cells) && cells[i] != "" {
			row[i] = printable(cells[i])
		}
	}
	t.rows = append(t.rows, row)
}

// fact adds a name and a value to a sheet; an empty value is left out.
func (t *table) fact(name, value string) {
	if value != "" {
		t.add(name+":", value)
	}
}

func (t *table) write(w io.Writer) {
	widths := make([]int, len(t.right))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	out := bufio.NewWriter(w)
	defer out.Flush()
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i > 0 {
				line.WriteString("  ")
			}
			if t.right[i] {
				line.WriteString(pad + cell)
			} else {
				line.WriteString(cell + pad)
			}
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}
