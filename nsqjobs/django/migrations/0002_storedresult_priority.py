from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar[list[tuple[str, str]]] = [("nsqjobs", "0001_initial")]
    operations = (
        migrations.AddField(model_name="storedresult", name="priority", field=models.IntegerField(default=0)),
    )
