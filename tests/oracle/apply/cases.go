package main

import "bufio"

func writeTable(out *bufio.Writer, specs string) {}
