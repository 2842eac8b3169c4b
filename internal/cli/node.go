package cli

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"samovar/internal/api/client"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

func nodeCommands(s *session) *cobra.Command {
	nodes := group("node", "The machines of the cluster")
	nodes.Example = "  samovar node list\n  samovar node info n1"
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the nodes", Args: takes(),
		Example: "  samovar node list\n  samovar node list --watch\n  samovar node list -o json",
		RunE: shown(s, func(ctx context.Context, c *client.Client, _ []string) ([]resource.Node, error) { return c.Nodes(ctx) },
			func(w io.Writer, nodes []resource.Node) { drawNodes(w, nodes) }, nil),
	}
	info := &cobra.Command{
		Use: "info NODE", Short: "Show one node", Args: takes("NODE"), ValidArgsFunction: s.completeNodes(),
		Example: "  samovar node info n1\n  samovar node info n1 -o yaml",
		RunE: shown(s, func(ctx context.Context, c *client.Client, args []string) (resource.Node, error) {
			return c.Node(ctx, args[0])
		}, func(w io.Writer, n resource.Node) { drawNode(w, n, s.streams.Zone) }, nodeHints),
	}
	nodes.AddCommand(s.lists(list), s.prints(info))
	return nodes
}

func nodeHints([]string) hints { return hints{fault.NotFound: "see: samovar node list"} }

func online(yes bool) string {
	if yes {
		return "online"
	}
	return "OFFLINE"
}

// role says what part a node has in the cluster store.
func role(n resource.Node) string {
	var parts []string
	switch {
	case n.Leader:
		parts = append(parts, "leader")
	case n.Member:
		parts = append(parts, "member")
	}
	if n.Witness {
		parts = append(parts, "witness")
	}
	return strings.Join(parts, ",")
}

func drawNodes(w io.Writer, nodes []resource.Node) {
	t := newTable("NAME", "STATE", "STORE", "API", "POOLS", "ATTACHED", "VERSION", "CAUSE")
	for _, n := range nodes {
		t.add(n.Name, online(n.Online), role(n), n.API, strings.Join(n.Pools, ","), strings.Join(n.Attached, ","), n.Version, n.Cause)
	}
	t.write(w)
}

func drawNode(w io.Writer, n resource.Node, zone *time.Location) {
	t := newSheet()
	t.fact("Node", n.Name)
	t.fact("State", online(n.Online))
	t.fact("Cause", n.Cause)
	t.fact("Cluster store", role(n))
	t.fact("API", n.API)
	t.fact("Replica sessions", n.Data)
	t.fact("NBD", strings.Join(n.NBD, " "))
	t.fact("Version", n.Version)
	t.fact("Started", moment(n.Started, zone))
	t.fact("Pools", strings.Join(n.Pools, ", "))
	t.fact("Attached", strings.Join(n.Attached, ", "))
	t.write(w)
}

// moment prints a time, or nothing for none.
func moment(at time.Time, zone *time.Location) string {
	if at.IsZero() {
		return ""
	}
	return at.In(zone).Format("2006-01-02 15:04:05 MST")
}
