package cli

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"samovar/internal/api/client"
	"samovar/internal/resource"
)

// eventsQuery is what is asked of events.
type eventsQuery struct {
	after string    // an id; empty: the newest
	from  time.Time // zero: no matter
	limit int
}

func eventsCommand(s *session) *cobra.Command {
	var follow bool
	var since string
	var limit int
	cmd := &cobra.Command{
		Use: "events", Short: "Show what happened, and follow what happens", Args: takes(),
		Long: `Show what happened, oldest first. --since takes a span of time (90m), a time (2026-03-01 or
2026-03-01T12:00:00Z), or the id of an event: what came after it.`,
		Example: `  samovar events
  samovar events --follow
  samovar events --since 2h
  samovar events --follow -o json | jq .reason`,
		RunE: s.run(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			query, err := parseSince(since, time.Now())
			if err != nil {
				return usage(cmd, err)
			}
			if query.limit = limit; limit < 1 || limit > client.MaxEvents {
				return usage(cmd, fmt.Errorf("--limit is a number from 1 to %d", client.MaxEvents))
			}
			if follow {
				return s.followEvents(cmd, c, query)
			}
			events, _, err := fetchEvents(cmd, c, query)
			if err != nil {
				return err
			}
			return s.print(events, func(w io.Writer) { drawEvents(w, events, s.streams.Zone) })
		}),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "go on with what happens, until interrupted")
	flags.StringVar(&since, "since", "", "only what came after: 2h, 2026-03-01, or an event's id")
	flags.IntVar(&limit, "limit", client.EventsLimit, "at most so many")
	return s.prints(cmd)
}

func parseSince(text string, now time.Time) (eventsQuery, error) {
	if text == "" {
		return eventsQuery{}, nil
	}
	if span, err := time.ParseDuration(text); err == nil && text != "0" {
		if span < 0 {
			return eventsQuery{}, fmt.Errorf("--since %s lies in the future", text)
		}
		return eventsQuery{from: now.Add(-span)}, nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02"} {
		if at, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return eventsQuery{from: at}, nil
		}
	}
	return eventsQuery{after: text}, nil
}

// fetchEvents lists events, and tells behind which id to go on. The API knows no times: the newest are fetched
// and the older ones left out.
func fetchEvents(cmd *cobra.Command, c *client.Client, q eventsQuery) (events []resource.Event, last string, err error) {
	limit := q.limit
	if !q.from.IsZero() {
		limit = client.MaxEvents
	}
	all, err := c.Events(cmd.Context(), q.after, limit)
	if err != nil {
		return nil, "", err
	}
	last = "0" // every id sorts behind it
	if len(all) > 0 {
		last = all[len(all)-1].ID
	}
	events = slices.DeleteFunc(all, func(e resource.Event) bool { return e.Time.Before(q.from) })
	return events[max(0, len(events)-q.limit):], last, nil
}

func (s *session) followEvents(cmd *cobra.Command, c *client.Client, q eventsQuery) error {
	if q.after == "" {
		old, last, err := fetchEvents(cmd, c, q)
		if err != nil {
			return err
		}
		for _, e := range old {
			if err := s.showEvent(e); err != nil {
				return err
			}
		}
		q.after = last
	}
	return c.Follow(cmd.Context(), q.after, s.showEvent)
}

// showEvent prints one event of many: a line, a JSON object on a line, or a YAML document.
func (s *session) showEvent(e resource.Event) error {
	var text []byte
	var err error
	switch s.output {
	case formatJSON:
		text, err = jsonText(e, "")
	case formatYAML:
		text, err = yamlText(e)
		text = append([]byte("---\n"), text...)
	default:
		text = fmt.Appendf(nil, "%s  %-7s  %-12s  %-12s  %s\n", e.Time.In(s.streams.Zone).Format("2006-01-02 15:04:05"),
			printable(e.Level), printable(e.Object), printable(e.Reason), printable(eventText(e)))
	}
	if err == nil {
		_, err = s.streams.Out.Write(text)
	}
	return err
}

func eventText(e resource.Event) string {
	if e.Bytes > 0 {
		return e.Text + " (" + formatSize(e.Bytes) + ")"
	}
	return e.Text
}

func drawEvents(w io.Writer, events []resource.Event, zone *time.Location) {
	t := newTable("TIME", "LEVEL", "OBJECT", "REASON", "TEXT")
	for _, e := range events {
		t.add(e.Time.In(zone).Format("2006-01-02 15:04:05"), e.Level, e.Object, e.Reason, eventText(e))
	}
	t.write(w)
}
