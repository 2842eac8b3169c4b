package problem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"samovar/internal/fault"
)

func TestTableHasEveryKindOnce(t *testing.T) {
	words := map[string]bool{}
	table := Table()
	for i, e := range table {
		if int(e.Kind) != i+1 {
			t.Errorf("entry %d is of kind %d: the table is in the order of the numbers", i, e.Kind)
		}
		if words[e.Word] || e.Word == "" || strings.ToLower(e.Word) != e.Word || strings.Contains(e.Word, " ") {
			t.Errorf("kind %d: word %q", e.Kind, e.Word)
		}
		words[e.Word] = true
		if e.Status < 400 || e.Status > 599 {
			t.Errorf("kind %d: status %d", e.Kind, e.Status)
		}
	}
	if next := fault.Kind(len(table) + 1); next.String() != "unknown kind" {
		t.Errorf("kind %v has no entry", next)
	}
}

// carry sends an error through JSON, as server and client do.
func carry(t *testing.T, err error) error {
	t.Helper()
	body, _ := Of(err)
	data, marshalErr := json.Marshal(body)
	if marshalErr != nil {
		t.Fatal(marshalErr)
	}
	var back Body
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	return back.Error.Err()
}

func TestEveryKindRoundTrips(t *testing.T) {
	for _, e := range Table() {
		errs := []error{
			fault.New(e.Kind, "attach volume tea", "held by node n2"),
			fault.New(e.Kind, "attach volume tea", ""),
			fault.New(e.Kind, "", "held by node n2"),
			fault.Wrap(e.Kind, "attach volume tea", errors.New("the cause")),
			&fault.Error{Kind: e.Kind, Op: "attach", Text: "words", Err: fault.New(fault.IO, "read", "disk")},
			fmt.Errorf("outside: %w", fault.New(e.Kind, "attach volume tea", "held")),
		}
		for _, err := range errs {
			back := carry(t, err)
			if fault.KindOf(back) != e.Kind || back.Error() != err.Error() {
				t.Errorf("%v %q came back as %v %q", e.Kind, err, fault.KindOf(back), back)
			}
			if _, status := Of(err); status != e.Status {
				t.Errorf("%v: status %d", e.Kind, status)
			}
		}
	}
}

func TestErrorsWithoutAKind(t *testing.T) {
	for _, c := range []struct {
		err  error
		kind fault.Kind
	}{
		{errors.New("plain"), fault.Internal},
		{context.DeadlineExceeded, fault.Aborted},
		{fmt.Errorf("x: %w", context.Canceled), fault.Aborted},
		{fault.Wrap(fault.IO, "read", context.Canceled), fault.IO},
		{fault.New(fault.None, "do", "nonsense"), fault.Internal},
		{fault.New(200, "do", "nonsense"), fault.Internal},
	} {
		if back := carry(t, c.err); fault.KindOf(back) != c.kind {
			t.Errorf("%v came back as %v", c.err, fault.KindOf(back))
		}
	}
	unknown := Detail{Kind: "from-the-future", Op: "do", Text: "what"}.Err()
	if !fault.Is(unknown, fault.Internal) || !strings.Contains(unknown.Error(), "from-the-future") {
		t.Errorf("unknown word: %v", unknown)
	}
}

func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range Table() {
		if start := fmt.Sprintf("| `%s` | %d |", e.Word, e.Status); !strings.Contains(string(page), start) {
			t.Errorf("docs/errors.md has no row that begins %q", start)
		}
	}
}
