# Stands for the editor of a user.
sed -i 's/^\(\s*\)note: .*$/&/; s/^  d: .*$/  d: "edited"/; s/^  size: .*$/  size: 1/' "$1"
