package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"samovar/internal/api/client"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

func volumeAttach(s *session) *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use: "attach VOLUME", Short: "Make a volume usable on a node, over NBD", Args: takes("VOLUME"), ValidArgsFunction: s.completeVolumes(),
		Long: `Make a volume usable on a node: the one that --node names, or the one that answers. It prints where the volume
can be reached over NBD. A volume is attached on one node at a time; attaching it where it is already succeeds.`,
		Example: "  samovar volume attach tea\n  samovar volume attach tea --node n1",
		RunE: s.run(func(cmd *cobra.Command, c *client.Client, args []string) error {
			name := args[0]
			a, err := c.Attach(cmd.Context(), name, resource.Attach{Node: node})
			if err != nil {
				return advise(err, hints{fault.NotFound: "see: samovar volume list, samovar node list",
					fault.Busy: "attach there, or: samovar volume detach " + name})
			}
			return s.print(a, func(w io.Writer) { drawAttachment(w, a) })
		}),
	}
	cmd.Flags().StringVar(&node, "node", "", "node to attach it on (the one that answers)")
	return cmd
}

func volumeDetach(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "detach VOLUME", Short: "End the use of a volume, wherever it is attached", Args: takes("VOLUME"), ValidArgsFunction: s.completeVolumes(),
		Long:    `End the use of a volume, wherever it is attached. It is refused while clients use it: end their sessions first.`,
		Example: "  samovar volume detach tea",
		RunE: s.run(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if err := c.Detach(cmd.Context(), args[0]); err != nil {
				return advise(err, volumeHints())
			}
			return s.done(args[0], "detached")
		}),
	}
}

// drawAttachment prints where a volume is and how to use it from there.
func drawAttachment(w io.Writer, a resource.Attachment) {
	fmt.Fprintf(w, "volume %s: attached on node %s\n", printable(a.Volume), printable(a.Node))
	t := newSheet()
	t.fact("  Unix socket", a.Socket)
	t.fact("  NBD on that node", a.Local)
	t.fact("  NBD over TCP", a.URI)
	t.write(w)
	examples := newSheet()
	switch {
	case a.Socket != "":
		examples.fact("  As a disk of node "+a.Node, fmt.Sprintf("nbd-client -unix %s /dev/nbd0 -N %s", quote(a.Socket), quote(a.Volume)))
	case a.URI != "":
		if host, port, ok := strings.Cut(strings.TrimPrefix(strings.TrimSuffix(a.URI, "/"+a.Volume), "nbd://"), ":"); ok && !strings.Contains(port, ":") {
			examples.fact("  As a disk", fmt.Sprintf("nbd-client %s %s /dev/nbd0 -N %s", quote(host), quote(port), quote(a.Volume)))
		}
	}
	for _, uri := range []string{a.Local, a.URI} {
		if uri != "" {
			examples.fact("  With QEMU's tools", "qemu-img info "+quote(uri))
			break
		}
	}
	if len(examples.rows) > 0 {
		fmt.Fprintln(w, "Use it, for example:")
		examples.write(w)
	}
}

// quote makes a word for a shell.
func quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-._/:+=,@%", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
